"""The processes of one host: started, watched for a heartbeat, restarted, ended in order."""
