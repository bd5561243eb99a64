"""Faces to simulate with: data sets, their partitions over phones, stores, features, and the models that are known."""
