"""The privacy ledger, kept: what `mien.dp` computes, in the coordinator's database and in the transaction of a round.

`account` is called by rounds, `report` tells people.
"""
