"""The data types of the domain. Imports no other package of maar."""
