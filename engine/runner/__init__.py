"""Runs planned steps on a device: batches, KV cache, sampling. Knows no queues and no journal."""
