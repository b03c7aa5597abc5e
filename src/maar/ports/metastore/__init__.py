"""The log, its replicas, and every port that one replica serves."""
