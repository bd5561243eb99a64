"""Taking part in rounds: conditions, consent, budget, training, masks and what is remembered of it."""
