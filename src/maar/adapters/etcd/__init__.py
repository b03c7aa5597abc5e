"""What the log in etcd is made of; `adapters/etcd_log.py` puts it together."""
