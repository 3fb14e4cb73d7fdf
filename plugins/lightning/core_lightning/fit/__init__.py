"""What a Trainer of Lightning does in its stages besides: callbacks that the user doesn't see."""
