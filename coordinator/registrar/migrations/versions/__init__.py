"""One file per change of the schema. A revision is never edited once released; the next one goes on from it."""
