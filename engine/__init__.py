"""Sequences, blocks, the scheduler and the loop that drives a runner. Its modules import no torch; runner/ does."""
