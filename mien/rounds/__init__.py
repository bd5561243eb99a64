"""Rules of rounds and tasks, without a clock or a disk: the coordinator runs them, the simulator emulates them."""
