"""The device layer: what a backend is, which ones there are, and the settings that choose among them."""
