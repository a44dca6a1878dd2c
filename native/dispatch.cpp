// dispatch
