"""What several experiments share: methods by parts, notes of finished work, critics, figures."""
