"""The real images: built by buildah, run by podman."""
