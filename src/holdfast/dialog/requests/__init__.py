"""Requests of the application, one function for each: all take the unit's state, the time and the request."""
