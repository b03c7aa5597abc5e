"""Three replicas as processes over a real etcd, and the faults that they must survive."""
