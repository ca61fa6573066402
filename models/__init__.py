"""Model architectures, their configs, weights and tokenizers. Stands on kernels; knows no scheduler and no journal."""
