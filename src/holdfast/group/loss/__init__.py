"""Lost messages: loss information, decisions of the application or the policy, and ignore criteria."""
