select caliber_agent_register(:agent_type, array['python', 'sql']);
