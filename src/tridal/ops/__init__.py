"""The ops: one file per op with its signature, its reference and its kernels; and the table of them."""
