"""`node.objects`: what applications use of objects, and the disk that holds the content of replicas."""
