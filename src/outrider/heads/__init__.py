"""The networks of trained drafters, one file each: as they are trained, saved and run."""
