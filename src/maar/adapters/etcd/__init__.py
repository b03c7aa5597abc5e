"""The parts of the log in etcd; `adapters/etcd/log.py` puts them together."""
