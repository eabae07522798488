"""Pictures of a graph: prototxt for Netron, SVG, and one HTML page."""
