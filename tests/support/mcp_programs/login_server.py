"""An MCP server that needs a login, and its authorization server, by the library of the protocol: `RECORD`.

Whoever opens the page for logins is logged in. A token is valid for calls until another one was given out.
"""

from __future__ import annotations

import asyncio
import json
import pathlib
import socket
import sys
from typing import Any

import uvicorn
from mcp.server import MCPServer
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

RECORD = pathlib.Path(sys.argv[1])


def record(*facts: Any) -> None:
    with RECORD.open("a") as file:
        file.write(json.dumps(facts) + "\n")


class Provider:
    """The authorization server."""

    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.refresh_token = ""
        self.count = 0

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        assert client_info.client_id is not None
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        assert client.client_id is not None
        code = f"code-{len(self.codes)}"
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=4e9,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client: Any, authorization_code: str) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client: Any, authorization_code: AuthorizationCode) -> OAuthToken:
        record("login", authorization_code.resource)
        return self.token()

    async def load_refresh_token(self, client: Any, refresh_token: str) -> RefreshToken | None:
        if refresh_token != self.refresh_token:
            return None
        return RefreshToken(token=refresh_token, client_id=client.client_id, scopes=[])

    async def exchange_refresh_token(self, client: Any, refresh_token: RefreshToken, scopes: list[str]) -> OAuthToken:
        record("refresh")
        return self.token()

    async def load_access_token(self, token: str) -> AccessToken | None:
        if token != f"token-{self.count}":
            return None
        return AccessToken(token=token, client_id="c", scopes=[])

    async def revoke_token(self, token: Any) -> None:
        pass

    def token(self) -> OAuthToken:
        self.count += 1
        self.refresh_token = f"refresh-{self.count}"
        return OAuthToken(access_token=f"token-{self.count}", expires_in=3600, refresh_token=self.refresh_token)


def main() -> None:
    provider: Any = Provider()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        address: Any = f"http://127.0.0.1:{port}"
        resource: Any = f"{address}/mcp"
        settings = AuthSettings(
            issuer_url=address,
            resource_server_url=resource,
            client_registration_options=ClientRegistrationOptions(enabled=True),
        )
        server = MCPServer("login", auth_server_provider=provider, auth=settings)

        @server.tool()
        def whoami(expire: bool = False) -> str:
            """Return who calls; `expire` ends the token."""
            token = f"token-{provider.count}"
            provider.count += expire
            return token

        app = server.streamable_http_app()
        sys.stdout.write(f"{port}\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0)
        asyncio.run(uvicorn.Server(config).serve(sockets=[listener]))


if __name__ == "__main__":
    main()
