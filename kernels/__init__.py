"""Ground floor: one file per operation of the forward pass. Knows tensors only."""
