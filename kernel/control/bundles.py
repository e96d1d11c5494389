"""From the text of a bundle to what decides: the one place where the policy language is asked to load one."""

from kernel.domain.policy import Bundle, load_bundle

CompiledBundle = Bundle


def compiled(text: str) -> CompiledBundle:
    """Return the bundle, or raise BundleInvalid with its line and field. May take a while: not for an event loop."""
    return load_bundle(text)
