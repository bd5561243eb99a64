"""Rounds as they are run: `engine` has tasks, a `task` its cohorts, a `cohort` its `attempt`, which `closing` ends."""
