"""Where nano-inspect looks: journals on disk, servers over HTTP, a demonstration. Knows no terminal."""
