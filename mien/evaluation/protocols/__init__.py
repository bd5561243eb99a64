"""Published test protocols: which samples are compared, in what folds, and what is reported.

They read text and arrays. Finding images, detecting faces and embedding them is the caller's work.
"""
