"""What each rank computes when."""
