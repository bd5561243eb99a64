"""From a round's model to the released one: gates, roll-outs, signatures, and the way back."""
