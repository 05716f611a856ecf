"""Reading, converting and publishing checkpoints."""
