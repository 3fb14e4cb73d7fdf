"""The real torchrun."""


def test_torchrun_starts_the_script(run, script, torchrun):
    lines = run(*torchrun, "--standalone", "--nproc-per-node", 2, script, 2, 1)
    assert lines == [f"TorchElasticEnvironment rank {rank} of 2 node 0 local {rank} restart 0 sum 3" for rank in (0, 1)]


def test_a_restarted_group_finds_itself(run, script, torchrun):
    """The agent's store outlives the group that died, and so do the addresses in it."""
    lines = run(*torchrun, "--standalone", "--nproc-per-node", 2, "--max-restarts", 1, script, 2, 1, "--die-once")
    assert lines == [f"TorchElasticEnvironment rank {rank} of 2 node 0 local {rank} restart 1 sum 3" for rank in (0, 1)]
