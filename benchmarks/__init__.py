"""Programs that measure and show the engine: `nano-bench` and the demo."""
