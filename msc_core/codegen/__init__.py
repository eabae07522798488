"""`MSCGraph` -> a framework: every target interprets the `Call` trees of the op table."""
