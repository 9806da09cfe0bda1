"""From a problem to a launch: row layout, specialization, compilation and the launch on a stream."""
