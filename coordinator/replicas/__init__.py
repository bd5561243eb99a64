"""Several coordinators as one: they share a PostgreSQL database and a bucket, behind a TCP load balancer.

Each population has one owner at a time, by a lease in the database (`registry`), and only the owner can commit what
its rounds become (`fencing`). Any replica takes any call: what is the owner's to answer is passed on (`forwarding`),
uploads end where they arrive and lie in the bucket before they are acknowledged (`contributions`, `desks`), and at the
end of a round each replica adds up what it holds (`sums`). Decision 0023 says why.
"""
