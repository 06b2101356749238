"""Items on their way: functions at work, lanes, and what is dealt to whom. Nothing here knows a
tree of steps."""
