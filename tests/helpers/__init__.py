"""What tests of several rooms share: recorded runs, networks, dumps, exact results, programs."""
