"""How a round and a task go on, without a clock or a disk: what the coordinator runs and the simulator emulates."""
