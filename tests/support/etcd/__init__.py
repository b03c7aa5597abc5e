"""A real etcd on loopback, its certificates, and logs in it."""
