"""What the log in etcd is made of; `adapters/etcd/log.py` puts it together."""
