"""The terminal user interface of nano-inspect, on Textual. Shows views; reads no journal itself."""
