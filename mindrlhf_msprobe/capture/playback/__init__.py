"""What another run recorded, given to the training in the place of what it would compute."""
