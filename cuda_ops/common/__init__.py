"""What all operators share: registration, building, loading, launching."""
