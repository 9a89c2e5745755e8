"""From one placement to another: planned in plain ints, then carried out."""
