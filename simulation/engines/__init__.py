"""Ways to run a cohort on this machine or several, equal in result: one file a way, `base` says what they share."""
