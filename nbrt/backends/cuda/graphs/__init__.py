"""CUDA graphs: captures of streams by the driver, and their replays."""
