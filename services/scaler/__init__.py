"""The scaler: starts and stops workers as the dispatcher wants."""
