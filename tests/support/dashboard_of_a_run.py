"""What the dashboard shows of a run on the Hub, without its swarm: python dashboard_of_a_run.py ORG/RUN, as JSON."""

import json
import sys

from hub_tools.endpoint import prepare_hub_client
from pipelines.tools.pages.dashboard.dashboard import Dashboard
from pipelines.tools.pages.dashboard.settings import DashboardSettings

if __name__ == "__main__":
    prepare_hub_client()
    dashboard = Dashboard(DashboardSettings(run=sys.argv[1]))
    dashboard.hub.look()
    print(json.dumps(dashboard.headline() + dashboard.board("all") + dashboard.charts()))
